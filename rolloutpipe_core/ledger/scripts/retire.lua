-- The first phase of a deletion: from now on no new pin. Answers with the sets retired long enough to be deleted.
-- KEYS: run, ledger, pins, retired. ARGV: epoch, nonce, actor, redis id, grace_ms, ripe_ms, then the sets that may go
-- A Redis that restarted, failed over or was emptied may have lost pins: no weights go until the grace is over.
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local PINS, RETIRED = KEYS[3], KEYS[4]
local known = redis.call('HMGET', RUN, 'redis_id', 'pins_since_ms')
local since = tonumber(known[2] or NOW)
if known[1] and known[1] ~= ARGV[4] then since = NOW_MS end
redis.call('HSET', RUN, 'redis_id', ARGV[4], 'pins_since_ms', text(since))
local settled = NOW_MS - since >= tonumber(ARGV[5])
redis.call('ZREMRANGEBYSCORE', PINS, '-inf', NOW)
local pinned = {}
for _, pin in ipairs(redis.call('ZRANGE', PINS, 0, -1)) do pinned['weights/' .. pin:match('^%S+ (%S+)')] = true end
local retired, ripe = {}, {}
for i = 7, #ARGV do
  local set = ARGV[i]
  local weights = set:sub(1, 8) == 'weights/'
  if not weights or (settled and not pinned[set]) then
    local mark = redis.call('HGET', RETIRED, set)
    if not mark then
      redis.call('HSET', RETIRED, set, NOW .. ' ' .. ARGV[3])
      retired[#retired + 1] = set
    elseif NOW_MS - tonumber(mark:match('^%d+')) >= tonumber(ARGV[6]) then
      ripe[#ripe + 1] = set
    end
  end
end
if #retired > 0 then tell('retention', ARGV[3], {'phase', 'retired', 'sets', table.concat(retired, ' '), 'objects', '0', 'bytes', '0'}) end
return {'OK', ripe}
