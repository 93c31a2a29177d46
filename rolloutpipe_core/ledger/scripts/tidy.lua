-- Trims what nobody needs any more: of the FIFO what is older than the archive's end, all but the newest registry entries,
-- the names of services that are gone. KEYS: run, ledger, fifo, weights, services, service hashes.
-- ARGV: epoch, nonce, registry entries to keep ('' = all)
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local groups = redis.call('EXISTS', FIFO) == 1 and redis.call('XINFO', 'GROUPS', FIFO) or {}
for _, flat in ipairs(groups) do
  local group = {}
  for i = 1, #flat, 2 do group[flat[i]] = flat[i + 1] end
  if group['name'] == 'trainer' then
    -- Nothing that is pending or undelivered goes, however old.
    local pending = redis.call('XPENDING', FIFO, 'trainer')
    local acknowledged = pending[1] > 0 and pending[2] or group['last-delivered-id']
    local archived = redis.call('HGET', RUN, 'archived_to') or '0-0'
    redis.call('XTRIM', FIFO, 'MINID', '=', precedes(archived, acknowledged) and archived or acknowledged)
  end
end
if ARGV[3] ~= '' then redis.call('XTRIM', KEYS[4], 'MAXLEN', '=', ARGV[3]) end
for i = 6, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then redis.call('SREM', KEYS[5], KEYS[i]) end
end
return {'OK'}
