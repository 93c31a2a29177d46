-- The update's membership is final. KEYS: round keys. ARGV: epoch, nonce, actor, update, groups, samples, tokens
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local sum = ARGV[5] .. ' ' .. ARGV[6] .. ' ' .. ARGV[7]
local sealed = redis.call('HGET', ROUND, 'sealed_' .. ARGV[4])
if sealed == sum then return {'REPEAT', sum} end
if sealed then return {'REFUSED', 'update ' .. ARGV[4] .. ' was sealed with (groups samples tokens) ' .. sealed} end
local round = redis.call('HMGET', ROUND, 'updates_sealed', 'assigned')
if round[1] ~= ARGV[4] or round[2] ~= ARGV[5] then
  return {'REFUSED', 'update ' .. round[1] .. ' has ' .. round[2] .. ' groups assigned'}
end
redis.call('HSET', ROUND, 'sealed_' .. ARGV[4], sum, 'assigned', '0')
redis.call('HINCRBY', ROUND, 'updates_sealed', 1)
tell('sealed', ARGV[3], {'round', redis.call('HGET', ROUND, 'round'), 'update', ARGV[4], 'groups', ARGV[5], 'samples', ARGV[6], 'tokens', ARGV[7]})
return {'OK', sum}
