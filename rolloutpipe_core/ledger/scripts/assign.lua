-- queued -> claimed: the group's membership in an update is recorded before it is accumulated. KEYS: round keys, group.
-- ARGV: epoch, nonce, actor, group, attempt, sha256, update, index
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local group = redis.call('HMGET', KEYS[8], 'state', 'attempt', 'sha256', 'update', 'update_index')
if group[1] == 'claimed' and group[2] == ARGV[5] and group[4] == ARGV[7] and group[5] == ARGV[8] then
  return {'REPEAT', group[1]}
end
if group[1] ~= 'queued' then return {'REFUSED', 'group is ' .. (group[1] or 'unknown')} end
if group[2] ~= ARGV[5] or group[3] ~= ARGV[6] then return {'REFUSED', 'attempt ' .. group[2] .. ' is the current one'} end
local round = redis.call('HMGET', ROUND, 'updates_sealed', 'assigned')
if round[1] ~= ARGV[7] or round[2] ~= ARGV[8] then
  return {'REFUSED', 'next is update ' .. round[1] .. ', place ' .. round[2]}
end
redis.call('HINCRBY', ROUND, 'assigned', 1)
move(KEYS[8], ARGV[3], 'claimed', {'update', ARGV[7], 'update_index', ARGV[8]}, '')
return {'OK', 'claimed'}
