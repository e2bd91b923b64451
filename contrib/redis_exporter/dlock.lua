-- INFO dlock for redis_exporter: redis_exporter -script dlock.lua. Each number becomes redis_script_values{key="..."}.
local all = {}
for key, value in redis.call("INFO", "dlock"):gmatch("dlock_([%w_]+):(%d+)\r") do all[#all + 1] = key; all[#all + 1] = value end
return all
