-- The update's membership is final. KEYS: round keys. ARGV: epoch, nonce, actor, update, groups, samples, tokens
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local sum = ARGV[5] .. ' ' .. ARGV[6] .. ' ' .. ARGV[7]
local sealed = redis.call('HGET', ROUND, 'sealed_' .. ARGV[4])
if sealed == sum then return {'REPEAT', sum} end
if sealed then return {'REFUSED', 'update ' .. ARGV[4] .. ' was sealed with (groups samples tokens) ' .. sealed} end
local round = redis.call('HMGET', ROUND, 'updates_sealed', 'assigned')
if round[1] ~= ARGV[4] or round[2] ~= ARGV[5] then
  return {'REFUSED', 'update ' .. round[1] .. ' has ' .. round[2] .. ' groups assigned'}
end
-- Only a round's last update has fewer groups. The caller read that nothing more comes; a Redis that lost its last second
-- may have forgotten it since, and the group that it was told of with it.
local coming = unsettled() + number(ROUND, 'n_queued')
if tonumber(ARGV[5]) < number(ROUND, 'groups_per_update') and coming > 0 then
  return {'REFUSED', 'update ' .. ARGV[4] .. ' has only ' .. ARGV[5] .. ' groups, and ' .. text(coming) .. ' more may come'}
end
redis.call('HSET', ROUND, 'sealed_' .. ARGV[4], sum, 'assigned', '0')
redis.call('HINCRBY', ROUND, 'updates_sealed', 1)
tell('sealed', ARGV[3], {'round', redis.call('HGET', ROUND, 'round'), 'update', ARGV[4], 'groups', ARGV[5], 'samples', ARGV[6], 'tokens', ARGV[7]})
return {'OK', sum}
