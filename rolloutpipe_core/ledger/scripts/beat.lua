-- The trainer's heartbeat carries its token: a fenced-off trainer learns it here even while it only waits.
-- Rollout workers have leases instead of a role: they pass an empty epoch.
-- KEYS: run, ledger, service, services. ARGV: epoch, nonce, ttl_ms, ms since the present wait began and until it gives up
-- ('' = it does not wait), then the fields. The instants are the server's, like all that is compared between machines.
local fenced = ARGV[1] ~= '' and trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local since, deadline = tonumber(ARGV[4]), tonumber(ARGV[5])
local fields = {'waiting_since_ms', since and text(NOW_MS - since) or '', 'deadline_ms', deadline and text(NOW_MS + deadline) or ''}
for i = 6, #ARGV do fields[#fields + 1] = ARGV[i] end
redis.call('HSET', KEYS[3], 'seen_ms', NOW, unpack(fields))
redis.call('PEXPIRE', KEYS[3], ARGV[3])
redis.call('SADD', KEYS[4], KEYS[3])
return {'OK'}
