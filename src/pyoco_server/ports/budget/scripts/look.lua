-- Keys: any number. What is stored under each, at one moment.
local found = {}
for i, key in ipairs(KEYS) do
  found[i] = seen(key)
end
return found
