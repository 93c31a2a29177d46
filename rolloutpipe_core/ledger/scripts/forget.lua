-- Deletes keys of a published round that is wholly archived: some of its groups; with the last of them the round's own.
-- KEYS: round keys, groups. ARGV: epoch, nonce, round, '1' with the last groups
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local state, archived = redis.call('HGET', ROUND, 'state'), number(RUN, 'archived_round')
if state and state ~= 'published' then return {'REFUSED', 'round is ' .. state} end
if tonumber(ARGV[3]) > archived or redis.call('HEXISTS', RUN, 'archived_round') == 0 then
  return {'REFUSED', 'round ' .. ARGV[3] .. ' is not archived'}
end
for i = 8, #KEYS do redis.call('DEL', KEYS[i]) end
if ARGV[4] == '1' then
  redis.call('DEL', ROUND, OPEN, DEFERRED, LEASES)
  redis.call('HSET', RUN, 'forgotten_round', ARGV[3])
end
return {'OK'}
