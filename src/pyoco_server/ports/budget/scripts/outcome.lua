#!lua flags=no-writes
-- Keys: reserve, outcome. Both in one look: a closing between two looks would be seen in neither.
local reserved = redis.call('HGET', KEYS[1], 'reserved_usd_micros')
if reserved then
  return {'OPEN', reserved}
end
local closed = redis.call('HMGET', KEYS[2], 'kind', 'charge_usd_micros', 'refund_usd_micros')
if not closed[1] then
  return {'NONE'}
end
return closed
