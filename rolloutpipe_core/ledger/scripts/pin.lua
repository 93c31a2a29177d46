-- Keeps a version's weights until the pin ends. KEYS: run, ledger, pins, retired. ARGV: version, sha (16 digits), for_ms, reason
if redis.call('EXISTS', RUN) == 0 then return {'REFUSED', 'no such run'} end
local retired = redis.call('HGET', KEYS[4], 'weights/' .. ARGV[2])
if retired then return {'REFUSED', 'its weights are retired and about to be deleted (' .. retired .. ')'} end
local ends = text(NOW_MS + tonumber(ARGV[3]))
redis.call('ZADD', KEYS[3], ends, ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[4])
return {'OK', ends}
