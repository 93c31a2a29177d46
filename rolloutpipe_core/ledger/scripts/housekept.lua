-- The housekeeper's last pass, for `status`, and the limit that it goes by, for `audit`. KEYS: run, ledger.
-- ARGV: epoch, nonce, error ('' = it went through), keep_rounds ('' = all)
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
redis.call('HSET', RUN, 'housekeeping_ms', NOW, 'housekeeping_error', ARGV[3], 'keep_rounds', ARGV[4])
return {'OK'}
