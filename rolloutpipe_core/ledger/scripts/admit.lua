-- deferred -> admitted: gives the group's lease. KEYS: round keys, group.
-- ARGV: group, worker, nonce, lease_ms, width (0 = no hard frontier)
local group, worker, nonce, width = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5])
local now = redis.call('HMGET', KEYS[8], 'state', 'nonce', 'attempt')
if not now[1] then return {'REFUSED', 'no such group'} end
if now[2] == nonce then return {'REPEAT', now[3]} end
if now[1] ~= 'deferred' then return {'REFUSED', 'group is ' .. now[1]} end
local state = redis.call('HGET', ROUND, 'state')
if state ~= 'open' and state ~= 'generating' then return {'REFUSED', 'round is ' .. state} end
-- Eq. 6: admitted iff among the F_w lowest-order groups that are not serving-complete.
if width > 0 and redis.call('ZRANK', OPEN, group) >= width then return {'REFUSED', 'outside the frontier'} end
if state == 'open' then
  redis.call('HSET', ROUND, 'rollout_start_ms', NOW)
  move_round(worker, 'generating', {})
end
redis.call('ZREM', DEFERRED, group)
redis.call('ZADD', LEASES, text(NOW_MS + tonumber(ARGV[4])), group)
local attempt = redis.call('HINCRBY', KEYS[8], 'attempt', 1)
move(KEYS[8], worker, 'admitted', {'worker', worker, 'nonce', nonce}, '')
return {'OK', text(attempt)}
