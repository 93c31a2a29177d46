-- Tells a Redis that has lost it where the archive ends. KEYS: run, ledger.
-- ARGV: epoch, nonce, bucket, last id, newest round that is wholly archived
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
redis.call('HSET', RUN, 'archived_to', ARGV[4], 'archive_bucket', ARGV[3], 'archived_round', ARGV[5])
-- Readers go on behind the archive's end: what is told from now on must be there, even by a clock that is behind.
local stream = redis.call('XINFO', 'STREAM', LEDGER)
for i = 1, #stream, 2 do
  if stream[i] == 'last-generated-id' and precedes(stream[i + 1], ARGV[4]) then redis.call('XSETID', LEDGER, ARGV[4]) end
end
return {'OK', ARGV[4]}
