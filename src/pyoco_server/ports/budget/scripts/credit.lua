#!lua
-- Keys: balance, credit. Arguments: amount, the largest amount there is.
local amount = ARGV[1]
if not string.find(amount, '^[1-9]%d*$') or tonumber(amount) > tonumber(ARGV[2]) then
  return redis.error_reply('DPP_AMOUNT')
end
if redis.call('EXISTS', KEYS[2]) > 0 then
  return {'ERR_ALREADY_APPLIED'}
end
-- Fails, as the first write, if the balance is no whole number or would pass 2^63.
local added = redis.pcall('INCRBY', KEYS[1], amount)
if type(added) == 'table' and added.err then
  if string.find(added.err, 'overflow', 1, true) then
    return redis.error_reply('DPP_AMOUNT')
  elseif string.find(added.err, 'not an integer', 1, true) then
    return redis.error_reply('DPP_DAMAGED')
  end
  return added
end
redis.call('SET', KEYS[2], amount)
return {'OK', redis.call('GET', KEYS[1])}
