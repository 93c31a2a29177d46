-- Fenced reading: only the role's holder takes entries, so a woken predecessor cannot swallow one.
-- KEYS: run, ledger, fifo. ARGV: epoch, nonce, after, count
-- New entries become pending; then every pending one after `after` is returned, which makes a repeat harmless.
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
redis.call('XREADGROUP', 'GROUP', 'trainer', 'trainer', 'COUNT', ARGV[4], 'STREAMS', FIFO, '>')
local pending = redis.call('XREADGROUP', 'GROUP', 'trainer', 'trainer', 'COUNT', ARGV[4], 'STREAMS', FIFO, ARGV[3])
return {'OK', pending and pending[1] and pending[1][2] or {}}
