-- Stops the run for good, with its reasons. KEYS: run, ledger. ARGV: epoch, nonce, actor, reason
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
if redis.call('HGET', RUN, 'state') == 'stopped' then return {'REPEAT'} end
redis.call('HSET', RUN, 'state', 'stopped', 'stop_reason', ARGV[4])
tell('run', ARGV[3], {'to', 'stopped', 'reason', ARGV[4]})
return {'OK'}
