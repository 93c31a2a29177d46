-- The gate proved damage. KEYS: round keys, group. ARGV: epoch, nonce, actor, group, attempt, entry, reason, max_rejections
-- The group's current announcement: re-admit it under the same version, or end it; a drained round is reopened under the
-- next generation. Any other announcement (old attempt, duplicate) is put aside and changes no group.
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local actor, group_id, entry, reason = ARGV[3], ARGV[4], ARGV[6], ARGV[7]
local pending = redis.call('XACK', FIFO, 'trainer', entry) == 1
local group = redis.call('HMGET', KEYS[8], 'state', 'attempt', 'entry')
if group[1] ~= 'queued' or group[2] ~= ARGV[5] or group[3] ~= entry then
  if not pending then return {'REPEAT', 'ignored', redis.call('HGET', ROUND, 'generation') or '0'} end
  local round = text(tonumber(group_id:match('%d+')))  -- the round's own keys may be gone
  tell('announcement', actor, {'group', group_id, 'round', round, 'attempt', ARGV[5], 'reason', reason})
  return {'OK', 'ignored', redis.call('HGET', ROUND, 'generation') or '0'}
end
if redis.call('HINCRBY', KEYS[8], 'rejections', 1) > tonumber(ARGV[8]) then
  move(KEYS[8], actor, 'rejected', {}, reason)
  return {'OK', 'rejected', redis.call('HGET', ROUND, 'generation')}
end
defer(KEYS[8], actor, reason)
if redis.call('HGET', ROUND, 'state') == 'drained' then
  redis.call('HINCRBY', ROUND, 'generation', 1)
  move_round(actor, 'generating', {})
end
return {'OK', 'deferred', redis.call('HGET', ROUND, 'generation')}
