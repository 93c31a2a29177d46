-- Tells a Redis that has lost it where the archive ends. KEYS: run, ledger.
-- ARGV: epoch, nonce, bucket, last id, newest round that is wholly archived
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
redis.call('HSET', RUN, 'archived_to', ARGV[4], 'archive_bucket', ARGV[3], 'archived_round', ARGV[5])
return {'OK', ARGV[4]}
