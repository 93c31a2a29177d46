-- The trainer's heartbeat carries its token: a fenced-off trainer learns it here even while it only waits.
-- Rollout workers have leases instead of a role: they pass an empty epoch.
-- KEYS: run, ledger, service, services. ARGV: epoch, nonce, ttl_ms, then the fields
local fenced = ARGV[1] ~= '' and trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local fields = {}
for i = 4, #ARGV do fields[#fields + 1] = ARGV[i] end
redis.call('HSET', KEYS[3], 'seen_ms', NOW, unpack(fields))
redis.call('PEXPIRE', KEYS[3], ARGV[3])
redis.call('SADD', KEYS[4], KEYS[3])
return {'OK'}
