-- Trims what nobody needs any more: the FIFO behind its acknowledged end, all but the newest registry entries, the names
-- of services that are gone. KEYS: run, ledger, fifo, weights, services, service hashes.
-- ARGV: epoch, nonce, registry entries to keep ('' = all)
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local groups = redis.call('EXISTS', FIFO) == 1 and redis.call('XINFO', 'GROUPS', FIFO) or {}
for _, flat in ipairs(groups) do
  local group = {}
  for i = 1, #flat, 2 do group[flat[i]] = flat[i + 1] end
  if group['name'] == 'trainer' then
    -- Nothing that is pending or undelivered goes; the last delivered entry stays as a landmark.
    local pending = redis.call('XPENDING', FIFO, 'trainer')
    redis.call('XTRIM', FIFO, 'MINID', '=', pending[1] > 0 and pending[2] or group['last-delivered-id'])
  end
end
if ARGV[3] ~= '' then redis.call('XTRIM', KEYS[4], 'MAXLEN', '=', ARGV[3]) end
for i = 6, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then redis.call('SREM', KEYS[5], KEYS[i]) end
end
return {'OK'}
