-- Ends a group unused, under its lease. KEYS: round keys, group.
-- ARGV: group, worker, attempt, nonce, from, to, reason, then the statistics' fields
local refused = lease_refused(KEYS[8], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6])
if refused then return refused end
local statistics = {}
for i = 8, #ARGV do statistics[#statistics + 1] = ARGV[i] end
leave_service(ARGV[1])
redis.call('ZREM', LEASES, ARGV[1])
move(KEYS[8], ARGV[2], ARGV[6], statistics, ARGV[7])
drain_if_settled(ARGV[2])
return {'OK', ARGV[6]}
