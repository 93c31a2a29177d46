-- Fixes the round's cohort. KEYS: round keys, then one key a group. ARGV: actor, round, lineage, version, sha,
-- cohort_sha, data_fingerprint, cursor, cursor_end, samples_per_group, groups_per_update, schedule,
-- order, then (group, prompt) pairs.
local actor, round, lineage, version, sha, cohort, data = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local run = redis.call('HMGET', RUN, 'version', 'version_sha', 'lineage', 'state')
if run[4] ~= 'active' then return {'REFUSED', 'run is ' .. (run[4] or 'not prepared')} end
if redis.call('EXISTS', ROUND) == 1 then
  local fixed = redis.call('HMGET', ROUND, 'cohort_sha', 'data_fingerprint', 'version', 'version_sha', 'lineage')
  if fixed[1] ~= cohort or fixed[2] ~= data then
    return {'REFUSED', 'this worker\'s data differ: round ' .. round .. ' was opened with cohort ' .. fixed[1]:sub(1, 12)
      .. ' of data ' .. fixed[2]:sub(1, 12) .. ', this worker has cohort ' .. cohort:sub(1, 12) .. ' of data ' .. data:sub(1, 12)}
  end
  if fixed[3] ~= version or fixed[4] ~= sha or fixed[5] ~= lineage then
    return {'REFUSED', 'round ' .. round .. ' samples with v' .. fixed[3] .. '@' .. fixed[4]:sub(1, 12)}
  end
  return {'REPEAT', redis.call('HGET', ROUND, 'state')}
end
if run[1] ~= version or run[2] ~= sha or run[3] ~= lineage then
  return {'REFUSED', 'the run is at v' .. run[1] .. '@' .. run[2]:sub(1, 12) .. ', lineage ' .. run[3]}
end
local facts = {'groups', text(#KEYS - 7), 'samples_per_group', ARGV[10], 'groups_per_update', ARGV[11], 'version', version,
  'version_sha', sha, 'lineage', lineage, 'cohort_sha', cohort, 'data_fingerprint', data, 'cursor', ARGV[8],
  'cursor_end', ARGV[9], 'schedule', ARGV[12], 'order', ARGV[13]}
redis.call('HSET', ROUND, 'round', round, 'generation', '1', 'updates_sealed', '0', 'assigned', '0', 'n_deferred', '0')
move_round(actor, 'open', facts)
redis.call('HSET', RUN, 'round', round)
for i = 8, #KEYS do
  local at = 14 + 2 * (i - 8)
  create(KEYS[i], actor, ARGV[at], text(i - 8), ARGV[at + 1], {})
end
return {'OK', 'open'}
