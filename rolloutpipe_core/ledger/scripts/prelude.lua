-- Shared by every script. KEYS: 1 run, 2 ledger, 3 fifo; with a round: 4 round, 5 open, 6 deferred, 7 leases; 8.. groups.
-- A script answers {'OK', ...}, {'REPEAT', ...} (done before by this very caller), {'FENCED', holder} or {'REFUSED', why}.
local RUN, LEDGER, FIFO, ROUND, OPEN, DEFERRED, LEASES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]

local clock = redis.call('TIME')
local NOW_MS = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function text(number) return string.format('%d', number) end
local NOW = text(NOW_MS)

local function number(key, field) return tonumber(redis.call('HGET', key, field) or '0') or 0 end

-- Of two stream ids.
local function precedes(a, b)
  local ms_a, seq_a = a:match('(%d+)-(%d+)')
  local ms_b, seq_b = b:match('(%d+)-(%d+)')
  if ms_a == ms_b then return tonumber(seq_a) < tonumber(seq_b) end
  return tonumber(ms_a) < tonumber(ms_b)
end

local function tell(kind, actor, fields)
  return redis.call('XADD', LEDGER, '*', 'v', '1', 'type', kind, 'at_ms', NOW, 'actor', actor, unpack(fields))
end

local function join(...)
  local all = {}
  for _, list in ipairs({...}) do
    for _, value in ipairs(list) do all[#all + 1] = value end
  end
  return all
end

-- The one way in which a group changes its state: hash, counters and history together.
local function move(group_key, actor, to, fields, reason)
  local was = redis.call('HMGET', group_key, 'state', 'group', 'round', 'attempt')
  redis.call('HSET', group_key, 'state', to, 'since_ms', NOW, 'reason', reason, unpack(fields))
  redis.call('HINCRBY', ROUND, 'n_' .. was[1], -1)
  redis.call('HINCRBY', ROUND, 'n_' .. to, 1)
  tell('group', actor, join({'group', was[2], 'round', was[3], 'from', was[1], 'to', to,
    'attempt', redis.call('HGET', group_key, 'attempt') or was[4], 'reason', reason}, fields))
end

local function move_round(actor, to, fields)
  redis.call('HSET', ROUND, 'state', to, to .. '_ms', NOW, unpack(fields))
  tell('round', actor, join({'round', redis.call('HGET', ROUND, 'round'), 'to', to,
    'generation', redis.call('HGET', ROUND, 'generation')}, fields))
end

local function unsettled()
  return number(ROUND, 'n_deferred') + number(ROUND, 'n_admitted')
    + number(ROUND, 'n_serving_complete') + number(ROUND, 'n_materialized')
end

-- The round is drained by the very script that settles its last group, so the trainer is always told.
local function drain_if_settled(actor)
  if redis.call('HGET', ROUND, 'state') ~= 'generating' or unsettled() > 0 then return end
  move_round(actor, 'drained', {})
  redis.call('XADD', FIFO, '*', 'kind', 'round_drained', 'round', redis.call('HGET', ROUND, 'round'),
    'generation', redis.call('HGET', ROUND, 'generation'))
end

-- A new group of the round, behind those that are there; its first event has the fields, too.
local function create(group_key, actor, group, index, prompt, fields)
  local of = redis.call('HMGET', ROUND, 'round', 'lineage')
  redis.call('HSET', group_key, 'group', group, 'prompt', prompt, 'round', of[1], 'index', index, 'lineage', of[2],
    'state', 'deferred', 'since_ms', NOW, 'attempt', '0', 'rejections', '0', unpack(fields))
  redis.call('HINCRBY', ROUND, 'n_deferred', 1)
  redis.call('ZADD', OPEN, index, group)
  redis.call('ZADD', DEFERRED, index, group)
  tell('group', actor, join({'group', group, 'round', of[1], 'from', '', 'to', 'deferred', 'attempt', '0', 'prompt', prompt},
    fields))
end

local function leave_service(group)
  redis.call('ZREM', OPEN, group)
  redis.call('ZREM', DEFERRED, group)
end

local function defer(group_key, actor, reason)
  local group = redis.call('HMGET', group_key, 'group', 'index')
  redis.call('ZADD', OPEN, group[2], group[1])
  redis.call('ZADD', DEFERRED, group[2], group[1])
  redis.call('ZREM', LEASES, group[1])
  move(group_key, actor, 'deferred', {'worker', '', 'nonce', ''}, reason)
end

-- A fencing token is compared for equality: a number alone can be handed out twice after a lost second.
local function trainer_fenced(epoch, nonce)
  local held = redis.call('HMGET', RUN, 'trainer_epoch', 'trainer_nonce', 'trainer_owner')
  if held[1] == epoch and held[2] == nonce then return nil end
  return {'FENCED', held[1] or '0', held[3] or 'nobody'}
end

local ENDED = 9
local ORDER = {deferred = 0, admitted = 1, serving_complete = 2, materialized = 3, queued = 4, claimed = 5, trained = 6,
  filtered = ENDED, failed = ENDED, rejected = ENDED}

-- Judges a call made under a group's lease: nil = go on; otherwise the answer to give.
local function lease_refused(group_key, worker, attempt, nonce, from, to)
  local group = redis.call('HMGET', group_key, 'state', 'attempt', 'nonce', 'worker')
  if not group[1] then return {'REFUSED', 'no such group'} end
  if group[2] ~= attempt or group[3] ~= nonce or group[4] ~= worker then
    return {'FENCED', group[2], group[4] or ''}
  end
  local done, goal = ORDER[group[1]], ORDER[to]
  if group[1] == to or (done < ENDED and goal < ENDED and done > ORDER[from]) then return {'REPEAT', group[1]} end
  if group[1] ~= from then return {'REFUSED', 'group is ' .. group[1] .. ', not ' .. from} end
  return nil
end
