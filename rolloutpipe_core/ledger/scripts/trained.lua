-- drained -> trained: every group of the round was consumed. KEYS: round keys. ARGV: epoch, nonce, actor, updates
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local round = redis.call('HMGET', ROUND, 'state', 'updates_sealed', 'assigned', 'n_queued')
if round[1] == 'trained' then return {'REPEAT', round[2]} end
if round[1] ~= 'drained' then return {'REFUSED', 'round is ' .. (round[1] or 'unknown')} end
if round[2] ~= ARGV[4] or round[3] ~= '0' or tonumber(round[4] or '0') > 0 then
  return {'REFUSED', round[2] .. ' updates sealed, ' .. round[3] .. ' groups in an open one, ' .. (round[4] or '0') .. ' queued'}
end
move_round(ARGV[3], 'trained', {'updates', ARGV[4]})
return {'OK', ARGV[4]}
