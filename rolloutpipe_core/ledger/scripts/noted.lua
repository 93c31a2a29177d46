-- What a server of a worker's engine did, for people: nothing counts it, so that a repeat after a lost answer does no harm.
-- KEYS: run, ledger. ARGV: worker, server, what
if redis.call('EXISTS', RUN) == 0 then return {'REFUSED', 'no such run'} end
tell('engine', ARGV[1], {'server', ARGV[2], 'what', ARGV[3]})
return {'OK'}
