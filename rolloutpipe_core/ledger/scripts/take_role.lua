-- Makes the caller the one trainer. KEYS: run, ledger. ARGV: owner, nonce, floor (highest epoch in the commit chain)
local held = redis.call('HMGET', RUN, 'trainer_epoch', 'trainer_nonce')
if held[2] == ARGV[2] then return {'REPEAT', held[1]} end
local epoch = text(math.max(tonumber(held[1] or '0'), tonumber(ARGV[3])) + 1)
redis.call('HSET', RUN, 'trainer_epoch', epoch, 'trainer_nonce', ARGV[2], 'trainer_owner', ARGV[1])
tell('role', 'trainer-' .. epoch, {'role', 'trainer', 'epoch', epoch})
return {'OK', epoch}
