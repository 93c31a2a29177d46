-- materialized -> queued: the object is up, so the reference enters the FIFO. KEYS: round keys, group.
-- ARGV: group, worker, attempt, nonce, then the reference's fields
local refused = lease_refused(KEYS[8], ARGV[2], ARGV[3], ARGV[4], 'materialized', 'queued')
if refused then return refused end
local reference = {}
for i = 5, #ARGV do reference[#reference + 1] = ARGV[i] end
redis.call('ZREM', LEASES, ARGV[1])
local group = redis.call('HMGET', KEYS[8], 'round', 'index', 'lineage')
local entry = redis.call('XADD', FIFO, '*', 'kind', 'group', 'group', ARGV[1], 'round', group[1], 'index', group[2],
  'lineage', group[3], 'attempt', ARGV[3], unpack(reference))
redis.call('HSET', KEYS[8], 'entry', entry)
move(KEYS[8], ARGV[2], 'queued', reference, '')
drain_if_settled(ARGV[2])
return {'OK', entry}
