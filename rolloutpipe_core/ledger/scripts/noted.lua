-- What a server of a worker's engine did, for people. The same as its newest note is no news: that is a repeat.
-- KEYS: run, ledger. ARGV: worker, server, what
if redis.call('EXISTS', RUN) == 0 then return {'REFUSED', 'no such run'} end
for _, entry in ipairs(redis.call('XREVRANGE', LEDGER, '+', '-', 'COUNT', 100)) do
  local told = entry[2] -- v, type, at_ms, actor, server, what: each before its value, as `tell` writes them
  if told[4] == 'engine' and told[8] == ARGV[1] and told[10] == ARGV[2] then
    if told[12] == ARGV[3] then return {'REPEAT'} end
    break
  end
end
tell('engine', ARGV[1], {'server', ARGV[2], 'what', ARGV[3]})
return {'OK'}
