-- Puts a FIFO entry behind us that needs nothing more: a drain marker. KEYS: run, ledger, fifo. ARGV: epoch, nonce, entry
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
redis.call('XACK', FIFO, 'trainer', ARGV[3])
return {'OK'}
