-- Ends a group unused, under its lease, and draws the group that takes its place, at the next place of the seeded sequence.
-- KEYS: round keys, group, the round's next group. ARGV: group, worker, attempt, nonce, from, to, reason,
-- next group, its index, its prompt ('' = none is drawn), then the statistics' fields
local refused = lease_refused(KEYS[8], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6])
if refused then return refused end
local drawn, index, prompt = ARGV[8], ARGV[9], ARGV[10]
-- Another worker drew that one meanwhile: the caller looks which is next, and calls again.
if redis.call('HGET', ROUND, 'groups') ~= index then return {'OK', 'overtaken'} end
local fields = prompt ~= '' and {'replaced_by', drawn} or {}
for i = 11, #ARGV do fields[#fields + 1] = ARGV[i] end
leave_service(ARGV[1])
redis.call('ZREM', LEASES, ARGV[1])
move(KEYS[8], ARGV[2], ARGV[6], fields, ARGV[7])
if prompt ~= '' then
  redis.call('HINCRBY', ROUND, 'groups', 1)
  redis.call('HINCRBY', ROUND, 'cursor_end', 1)
  create(KEYS[9], ARGV[2], drawn, index, prompt, {'replaces', ARGV[1]})
end
drain_if_settled(ARGV[2])
return {'OK', ARGV[6]}
