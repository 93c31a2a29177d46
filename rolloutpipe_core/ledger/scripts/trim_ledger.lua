-- Takes an archived beginning out of the ledger, once it stands in the object store. KEYS: run, ledger.
-- ARGV: epoch, nonce, bucket, last id, number and sha1 of the archived entries up to it, newest round that is wholly
-- archived. What is trimmed is compared with what was archived; `archived_to` moves with it,
-- and never back: a Redis that went back in time holds again what stands in the archive.
local fenced = trainer_fenced(ARGV[1], ARGV[2])
if fenced then return fenced end
local last, count = ARGV[4], tonumber(ARGV[5])
local entries = redis.call('XRANGE', LEDGER, '-', last, 'COUNT', count + 1)
if #entries == 0 then return {'REPEAT', last} end
local texts = {}
local function add(text) texts[#texts + 1] = #text .. ':' .. text end
for _, entry in ipairs(entries) do
  add(entry[1])
  for _, text in ipairs(entry[2]) do add(text) end
end
if #entries ~= count or redis.sha1hex(table.concat(texts)) ~= ARGV[6] then
  return {'REFUSED', 'the stream up to ' .. last .. ' is not what was archived'}
end
redis.call('XTRIM', LEDGER, 'MAXLEN', '=', redis.call('XLEN', LEDGER) - count)
if precedes(redis.call('HGET', RUN, 'archived_to') or '0-0', last) then
  redis.call('HSET', RUN, 'archived_to', last, 'archive_bucket', ARGV[3], 'archived_round', ARGV[7])
end
return {'OK', last}
