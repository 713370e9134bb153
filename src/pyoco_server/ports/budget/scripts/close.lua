#!lua flags=allow-oom
-- Keys: balance, reserve, outcome. Arguments: tenant, SETTLED or REFUNDED, charge, closed_at_ms, seconds to live,
-- the largest amount there is.
-- Giving money back frees memory, so it is done also when there is none left.
local charge = ARGV[3]
if not string.find(charge, '^%d+$') or tonumber(charge) > tonumber(ARGV[6]) then
  return redis.error_reply('DPP_AMOUNT')
end
local found = redis.call('HMGET', KEYS[2], 'reserved_usd_micros', 'tenant_id')
local reserved = found[1]
if not reserved then
  return {'ERR_NO_RESERVE'}
end
if found[2] ~= ARGV[1] then
  return redis.error_reply('DPP_TENANT')
end
local balance = redis.call('GET', KEYS[1]) or '0'
if not string.find(reserved, '^[1-9]%d*$') or tonumber(reserved) > tonumber(ARGV[6])
    or (balance ~= '0' and not string.find(balance, '^-?[1-9]%d*$')) then
  return redis.error_reply('DPP_DAMAGED')
end
-- Both are below 2^53, so Lua's numbers are exact; its own way of writing them is not (14 digits).
local taken = math.min(tonumber(charge), tonumber(reserved))
charge = string.format('%.0f', taken)
local refund = string.format('%.0f', tonumber(reserved) - taken)
-- Fails, as the first write, if the balance would pass 2^63.
local added = redis.pcall('INCRBY', KEYS[1], refund)
if type(added) == 'table' and added.err then
  if string.find(added.err, 'overflow', 1, true) then
    return redis.error_reply('DPP_AMOUNT')
  elseif string.find(added.err, 'not an integer', 1, true) then
    return redis.error_reply('DPP_DAMAGED')
  end
  return added
end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[3], 'kind', ARGV[2], 'charge_usd_micros', charge, 'refund_usd_micros', refund,
  'closed_at_ms', ARGV[4])
redis.call('EXPIRE', KEYS[3], ARGV[5])
return {'OK', charge, refund, redis.call('GET', KEYS[1])}
