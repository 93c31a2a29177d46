-- History only: what an optimizer step did. KEYS: round keys.
-- ARGV: epoch, nonce, actor, update, skipped, replay, busy_ms, blocked_ms, metrics
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local step = ARGV[4] .. ' ' .. ARGV[2]
if redis.call('HGET', ROUND, 'stepped') == step then return {'REPEAT'} end
redis.call('HSET', ROUND, 'stepped', step)
tell('stepped', ARGV[3], {'round', redis.call('HGET', ROUND, 'round'), 'update', ARGV[4], 'skipped', ARGV[5], 'replay', ARGV[6],
  'busy_ms', ARGV[7], 'blocked_ms', ARGV[8], 'metrics', ARGV[9]})
return {'OK'}
