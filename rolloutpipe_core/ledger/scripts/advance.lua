-- admitted -> serving_complete -> materialized, under the lease. KEYS: round keys, group.
-- ARGV: group, worker, attempt, nonce, from, to, lease_ms
local refused = lease_refused(KEYS[8], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6])
if refused then return refused end
-- Serving-complete frees the frontier's slot at once, before the reward is known.
if ARGV[6] == 'serving_complete' then leave_service(ARGV[1]) end
redis.call('ZADD', LEASES, text(NOW_MS + tonumber(ARGV[7])), ARGV[1])
move(KEYS[8], ARGV[2], ARGV[6], {}, '')
return {'OK', ARGV[6]}
