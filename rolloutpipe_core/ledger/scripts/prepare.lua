-- The run's hash, version 0 and the FIFO's consumer group. KEYS: run, ledger, fifo, weights.
-- ARGV: actor, lineage, version, sha, object, commit, commit_sha, config_sha, cursor
-- After a lost Redis the same call restores the run at the head of the commit chain.
local WEIGHTS = KEYS[4]
local actor, lineage, version, sha = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local state = redis.call('HGET', RUN, 'state')
if state then
  -- Somebody starts a stopped run again: what stopped it is judged anew.
  if state == 'stopped' then
    redis.call('HSET', RUN, 'state', 'active')
    redis.call('HDEL', RUN, 'stop_reason')
    tell('run', actor, {'to', 'resumed'})
  end
  return {'REPEAT', redis.call('HGET', RUN, 'version')}
end
redis.call('HSET', RUN, 'state', 'active', 'lineage', lineage, 'version', version, 'version_sha', sha,
  'cursor', ARGV[9], 'config_sha', ARGV[8], 'prepared_ms', NOW,
  'pins_since_ms', version == '0' and '0' or NOW) -- a run that is restored may have lost pins
redis.call('XADD', WEIGHTS, '*', 'number', version, 'sha', sha, 'object', ARGV[5], 'commit', ARGV[6], 'commit_sha', ARGV[7], 'at_ms', NOW)
tell('run', actor, {'to', version == '0' and 'prepared' or 'restored'})
tell('version', actor, {'number', version, 'sha', sha, 'object', ARGV[5], 'commit', ARGV[6], 'commit_sha', ARGV[7]})
if redis.call('EXISTS', FIFO) == 0 then redis.call('XGROUP', 'CREATE', FIFO, 'trainer', '0', 'MKSTREAM') end
return {'OK', version}
