-- Nothing of the round is committed, and an object of a recorded assignment is damaged: all assignments of the round go
-- back to queued, so that the gate can reject the damaged group and the rest is assigned anew.
-- KEYS: round keys, claimed groups. ARGV: epoch, nonce, actor, reason
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local state = redis.call('HGET', ROUND, 'state')
if state ~= 'generating' and state ~= 'drained' and state ~= 'trained' then return {'REFUSED', 'round is ' .. (state or 'unknown')} end
for i = 8, #KEYS do
  if redis.call('HGET', KEYS[i], 'state') == 'claimed' then
    redis.call('HDEL', KEYS[i], 'update', 'update_index')
    move(KEYS[i], ARGV[3], 'queued', {}, ARGV[4])
  end
end
for update = 0, number(ROUND, 'updates_sealed') do redis.call('HDEL', ROUND, 'sealed_' .. text(update)) end
redis.call('HSET', ROUND, 'updates_sealed', '0', 'assigned', '0')
if state == 'trained' then move_round(ARGV[3], 'drained', {}) end
return {'OK'}
