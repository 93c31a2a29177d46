-- Takes a lease back: given up by its holder (nonce given) or run out (nonce ''). The group is deferred again with the
-- same seeds, or failed when its attempts are used up. KEYS: round keys, group.
-- ARGV: group, actor, nonce, max_attempts, reason
local group, actor, nonce, most, reason = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local now = redis.call('HMGET', KEYS[8], 'state', 'nonce', 'attempt', 'worker')
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
if tonumber(now[3]) >= most then
  leave_service(group)
  redis.call('ZREM', LEASES, group)
  move(KEYS[8], actor, 'failed', {}, reason .. ' (attempt ' .. now[3] .. ' of ' .. ARGV[4] .. ')')
  drain_if_settled(actor)
  return {'OK', 'failed'}
end
defer(KEYS[8], actor, reason)
return {'OK', 'deferred'}
