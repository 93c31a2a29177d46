-- Applies a commit to Redis: registry entry, groups trained or ended as the commit says, entries acknowledged.
-- The commit is the truth, so this also mends a Redis that lost its last second.
-- KEYS: round keys, groups of the commit (trained ones first), groups that it does not hold, last: weights.
-- ARGV: epoch, nonce, actor, round, number, sha, object, commit, commit_sha, trained (count), next lineage,
--       cursor, then per group: trained: id, attempt, update, place; ended: id, state, reason, ''

-- Puts behind us what no later round needs: entries of this round and of older ones, and what is not ours. Those that
-- Redis forgot to have delivered, too: nobody would read them any more. `used`: attempt by trained group.
local function settle_entries(actor, round, used)
  if redis.call('EXISTS', FIFO) == 0 then return end
  redis.call('XREADGROUP', 'GROUP', 'trainer', 'trainer', 'STREAMS', FIFO, '>')
  local pending = redis.call('XPENDING', FIFO, 'trainer')[1]
  if pending == 0 then return end
  for _, waiting in ipairs(redis.call('XPENDING', FIFO, 'trainer', '-', '+', pending)) do
    local found, entry = redis.call('XRANGE', FIFO, waiting[1], waiting[1])[1], {}
    local flat = found and found[2] or {}
    for i = 1, #flat, 2 do entry[flat[i]] = flat[i + 1] end
    if (tonumber(entry.round) or round) <= round then
      redis.call('XACK', FIFO, 'trainer', waiting[1])
      local announced = (entry.group or ''):match('^r%d+%-g%d+$') and tonumber(entry.round) and tonumber(entry.attempt)
      if announced and used[entry.group] ~= entry.attempt then
        tell('announcement', actor, {'group', entry.group, 'round', entry.round, 'attempt', entry.attempt,
          'reason', 'the commit of round ' .. text(round) .. ' does not use it'})
      end
    end
  end
end

local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local actor, round, version, sha, trained = ARGV[3], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[10])
local WEIGHTS = KEYS[#KEYS]
local now = redis.call('HMGET', RUN, 'version', 'version_sha')
if now[1] == version and now[2] == sha then return {'REPEAT', version} end
if tonumber(now[1]) ~= tonumber(version) - 1 then
  return {'REFUSED', 'the run is at v' .. now[1] .. '@' .. now[2]:sub(1, 12)}
end
if number(ROUND, 'groups') > #KEYS - 8 then return {'REFUSED', 'another group of round ' .. round .. ' was drawn meanwhile'} end
redis.call('HSET', ROUND, 'round', round, 'groups', text(#KEYS - 8), 'cursor_end', ARGV[12])
redis.call('HSETNX', ROUND, 'generation', '1')
local used, count = {}, {filtered = 0, failed = 0, rejected = 0}
for i = 8, #KEYS - 1 do
  local at = 13 + 4 * (i - 8)
  local id, was = ARGV[at], redis.call('HGET', KEYS[i], 'state')
  local state, fields, reason = 'trained', {'update', ARGV[at + 2], 'update_index', ARGV[at + 3]}, ''
  if i - 8 >= trained then
    state, fields, reason = ARGV[at + 1], {}, ARGV[at + 2]
    count[state] = count[state] + 1
  end
  if not was then
    redis.call('HSET', KEYS[i], 'group', id, 'round', round, 'index', text(tonumber(id:match('%d+$'))), 'lineage', ARGV[11],
      'state', 'deferred', 'attempt', '0', 'rejections', '0')
  end
  if state == 'trained' then
    used[id] = ARGV[at + 1]
    redis.call('HSET', KEYS[i], 'attempt', used[id])
  end
  if was ~= state then move(KEYS[i], actor, state, fields, reason) end
end
redis.call('DEL', OPEN, DEFERRED, LEASES)
redis.call('HSET', ROUND, 'n_deferred', '0', 'n_admitted', '0', 'n_serving_complete', '0', 'n_materialized', '0', 'n_queued', '0',
  'n_claimed', '0', 'n_trained', text(trained), 'n_filtered', text(count.filtered), 'n_failed', text(count.failed), 'n_rejected', text(count.rejected))
settle_entries(actor, tonumber(round), used)
move_round(actor, 'committed', {'commit', ARGV[8]})
redis.call('HSET', RUN, 'version', version, 'version_sha', sha, 'lineage', ARGV[11], 'cursor', ARGV[12])
redis.call('XADD', WEIGHTS, '*', 'number', version, 'sha', sha, 'object', ARGV[7], 'commit', ARGV[8], 'commit_sha', ARGV[9], 'at_ms', NOW)
tell('version', actor, {'number', version, 'sha', sha, 'object', ARGV[7], 'commit', ARGV[8], 'commit_sha', ARGV[9]})
move_round(actor, 'published', {'published_version', version})
return {'OK', version}
