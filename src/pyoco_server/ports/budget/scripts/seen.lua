-- What is stored under a key, in a form that is only compared: it may be damaged.
local function seen(key)
  local kind = redis.call('TYPE', key)['ok']
  if kind == 'none' then
    return ''
  elseif kind == 'string' then
    return '=' .. redis.call('GET', key)
  elseif kind == 'hash' then
    local fields = redis.call('HMGET', key, 'reserved_usd_micros', 'tenant_id', 'created_at_ms')
    return (fields[1] or '?') .. '|' .. (fields[2] or '?') .. '|' .. (fields[3] or '?')
  end
  return '!' .. kind
end
