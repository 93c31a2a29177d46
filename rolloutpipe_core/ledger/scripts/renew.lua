-- Extends leases; answers those that are lost. KEYS: round keys, groups. ARGV: lease_ms, then (group, nonce) pairs
local lost = {'OK'}
for i = 8, #KEYS do
  local group, nonce = ARGV[2 + 2 * (i - 8)], ARGV[3 + 2 * (i - 8)]
  if redis.call('HGET', KEYS[i], 'nonce') ~= nonce then
    lost[#lost + 1] = group
  elseif redis.call('ZSCORE', LEASES, group) then
    redis.call('ZADD', LEASES, text(NOW_MS + tonumber(ARGV[1])), group)
  end
end
return lost
