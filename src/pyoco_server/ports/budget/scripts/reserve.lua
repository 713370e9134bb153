#!lua
-- Keys: balance, reserve, outcome. Arguments: tenant, amount, created_at_ms, seconds to live,
-- the largest amount there is.
-- A refusal comes before the first write; Redis undoes nothing.
local amount = ARGV[2]
if not string.find(amount, '^[1-9]%d*$') or tonumber(amount) > tonumber(ARGV[5]) then
  return redis.error_reply('DPP_AMOUNT')
end
if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then
  return {'ERR_ALREADY_RESERVED'}
end
local balance = redis.call('GET', KEYS[1]) or '0'
if balance ~= '0' and not string.find(balance, '^-?[1-9]%d*$') then
  return redis.error_reply('DPP_DAMAGED')
end
-- The amount is below 2^53, so this is right for every balance, rounded or not.
if tonumber(balance) < tonumber(amount) then
  return {'ERR_INSUFFICIENT', balance}
end
redis.call('DECRBY', KEYS[1], amount)
redis.call('HSET', KEYS[2], 'reserved_usd_micros', amount, 'tenant_id', ARGV[1], 'created_at_ms', ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[4])
return {'OK', redis.call('GET', KEYS[1])}
