-- What became of object sets: `deleted`, `kept` (something refers to them after all), or `swept` (nobody's, never retired).
-- KEYS: run, ledger, retired. ARGV: epoch, nonce, actor, call (unique), phase, objects, bytes, then the sets
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
if redis.call('HGET', RUN, 'retention_call') == ARGV[4] then return {'REPEAT'} end
redis.call('HSET', RUN, 'retention_call', ARGV[4])
local sets = {}
for i = 8, #ARGV do
  sets[#sets + 1] = ARGV[i]
  if ARGV[5] ~= 'swept' then redis.call('HDEL', KEYS[3], ARGV[i]) end
end
redis.call('HINCRBY', RUN, 'deleted_objects', ARGV[6])
redis.call('HINCRBY', RUN, 'deleted_bytes', ARGV[7])
tell('retention', ARGV[3], {'phase', ARGV[5], 'sets', table.concat(sets, ' '), 'objects', ARGV[6], 'bytes', ARGV[7]})
return {'OK'}
