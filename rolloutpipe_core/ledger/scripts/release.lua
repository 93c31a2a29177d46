-- Takes a lease back: given up by its holder (nonce given) or run out (nonce ''). The group is deferred again with the
-- same seeds, or failed when its attempts are used up. KEYS: round keys, group.
-- ARGV: group, actor, nonce, max_attempts, reason
local group, actor, nonce, most, reason = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local now = redis.call('HMGET', KEYS[8], 'released', 'nonce', 'attempt', 'worker')
-- A repeat by the holder whose answer was lost, whoever has the group by now.
if nonce ~= '' and now[1] == nonce .. ' deferred' then return {'REPEAT', 'deferred'} end
if nonce ~= '' and now[1] == nonce .. ' failed' then return {'REPEAT', 'failed'} end
local ends = redis.call('ZSCORE', LEASES, group)
if not ends then
  if nonce ~= '' and now[2] ~= nonce then return {'FENCED', now[3] or '', now[4] or ''} end
  return {'REFUSED', 'nobody holds a lease on it'}
end
if nonce ~= '' then
  if now[2] ~= nonce then return {'FENCED', now[3], now[4]} end
elseif tonumber(ends) >= NOW_MS then
  return {'REFUSED', 'the lease still runs'}
end
local outcome = tonumber(now[3]) >= most and 'failed' or 'deferred'
if nonce ~= '' then redis.call('HSET', KEYS[8], 'released', nonce .. ' ' .. outcome) end
if outcome == 'failed' then
  leave_service(group)
  redis.call('ZREM', LEASES, group)
  move(KEYS[8], actor, 'failed', {}, reason .. ' (attempt ' .. now[3] .. ' of ' .. ARGV[4] .. ')')
  drain_if_settled(actor)
else
  defer(KEYS[8], actor, reason)
end
return {'OK', outcome}
