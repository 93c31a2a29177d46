-- The housekeeper's last pass, for `status`. KEYS: run, ledger. ARGV: epoch, nonce, error ('' = it went through)
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
redis.call('HSET', RUN, 'housekeeping_ms', NOW, 'housekeeping_error', ARGV[3])
return {'OK'}
