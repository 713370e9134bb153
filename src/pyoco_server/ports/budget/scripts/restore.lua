-- Keys: balance, then any number of reserves. Arguments: what was seen of the balance, the new one, tenant, seconds to
-- live; then for each reserve what was seen of it, KEEP or DROP or its new amount, and its new created_at_ms.
-- All of it or nothing: whatever has changed since it was seen refuses the whole, before the first write.
if seen(KEYS[1]) ~= ARGV[1] then
  return {'CHANGED'}
end
for i = 2, #KEYS do
  if seen(KEYS[i]) ~= ARGV[3 * i - 1] then
    return {'CHANGED'}
  end
end
for i = 2, #KEYS do
  local amount = ARGV[3 * i]
  if amount ~= 'KEEP' then
    redis.call('DEL', KEYS[i])
  end
  if amount ~= 'KEEP' and amount ~= 'DROP' then
    redis.call('HSET', KEYS[i], 'reserved_usd_micros', amount, 'tenant_id', ARGV[3], 'created_at_ms', ARGV[3 * i + 1])
    redis.call('EXPIRE', KEYS[i], ARGV[4])
  end
end
redis.call('SET', KEYS[1], ARGV[2])
return {'OK'}
