-- Wireshark dissector for the connections of Bywash's driver tcp: docs/wire.md of the source tree.
--
--   tshark -X lua_script:bywash_tcp.lua -r FILE      wireshark -X lua_script:bywash_tcp.lua FILE
--
-- It knows a connection by the handshake that begins it, on any port. Other protocols of Bywash begin with the same
-- handshake and send sealed frames, which it shows as such. "bywash capture" marks segments of the driver tcp, so that
-- the dissector also knows connections that began before the capture. In other captures of such connections it needs
-- the port: the preference, or -d tcp.port==40000,bywash_tcp. Wireshark 4.0 or later.

set_plugin_info({ version = "1", author = "Bywash", description = "Bywash over TCP" })

local MAGIC, VERSION = 0x42794873, 1
local HELLO, ANSWER, REFUSAL = 1, 2, 3
local SIZES = { [HELLO] = 64, [ANSWER] = 56, [REFUSAL] = 8 }
local HANDSHAKES = { [HELLO] = "Hello", [ANSWER] = "Answer", [REFUSAL] = "Refusal" }
local REFUSALS = { [1] = "other version", [2] = "no such key, or a wrong tag" }

-- Bytes of the tag of a seal, and of the contents by which sealed frames are told apart.
local TAG, CLAIM, WELCOME, TOKEN, BARE = 16, 24, 2, 16, 1
local LENGTH, MAX_SEALED, MAX_RECORD = 4, 1048576, 16384
local HEAD, MAX_SMALL, TRANSFER, MAX_LARGE, SLOTS = 4, 16384, 32, 256 * 2 ^ 30, 16
local MESSAGE, PING, BYE, GRANT = 1, 2, 3, 4
local KINDS = { [MESSAGE] = "Message", [PING] = "Sign of life", [BYE] = "Bye", [GRANT] = "Grant" }
local SCAN = 20000 -- bytes of a segment in which the beginning of a frame is looked for

local proto = Proto("bywash_tcp", "Bywash over TCP")

proto.prefs.port = Pref.uint("TCP port", 0, "Connections with it are taken for the driver's; 0: none")
proto.prefs.heuristic = Pref.bool("Other TCP ports", true, "Connections that begin with Bywash's handshake are taken for it on any port")

local f, fields = {}, {}
local function field(name, kind, label, ...)
	f[name] = ProtoField[kind]("bywash_tcp." .. name, label, ...)
	fields[#fields + 1] = f[name]
end

field("handshake", "uint8", "Handshake", base.DEC, HANDSHAKES)
field("version", "uint8", "Version of the handshake")
field("code", "uint16", "Reason", base.DEC, REFUSALS)
field("key_id", "bytes", "Key id")
field("public_key", "bytes", "Public key")
field("auth_tag", "bytes", "Authentication tag")
field("note", "string", "Sealed frame")
field("sealed_length", "uint32", "Sealed bytes")
field("sealed", "bytes", "Sealed")
field("kind", "uint32", "Kind", base.DEC, KINDS)
field("length", "uint64", "Bytes of the message")
field("granted", "uint32", "Bytes granted")
field("tag", "uint64", "Tag of the receive", base.HEX)
field("slot", "uint8", "Slot of the receive")
field("follow", "uint64", "Bytes that follow")
field("payload", "bytes", "Payload")
field("transfer", "string", "Transfer with tag")
field("left", "uint64", "Bytes left of it")
field("record", "uint32", "Encrypted record, bytes")
field("rest", "bytes", "Bytes without a known beginning")
proto.fields = fields

local e_bad = ProtoExpert.new("bywash_tcp.malformed", "No frame of Bywash", expert.group.MALFORMED, expert.severity.ERROR)
local e_lost = ProtoExpert.new("bywash_tcp.lost", "The beginning of the frame was not captured", expert.group.UNDECODED, expert.severity.NOTE)
local e_cut = ProtoExpert.new("bywash_tcp.cut", "Not all of the segment was captured", expert.group.UNDECODED, expert.severity.NOTE)
proto.experts = { e_bad, e_lost, e_cut }

local get_stream, get_seq, get_len = Field.new("tcp.stream"), Field.new("tcp.seq"), Field.new("tcp.len")
local get_options = Field.new("tcp.options")

local function last(...) return (select(select("#", ...), ...)) end
local function value(get)
	local info = last(nil, get())
	return info and info.value
end

-- State of a connection, by its number: who dialed, who leads, how messages look. For each direction, `at` has by
-- sequence number which element of the stream begins there. Elements are met in this order on the first pass and in any
-- order later, so nothing that `at` has may depend on more than the bytes before.
local streams = {}

function proto.init() streams = {} end

local function sequence(n) return n % 2 ^ 32 end

-- position returns the connection, the direction of a segment in it, and the sequence number where tvb begins. Bytes
-- that were put together from several segments begin where the bytes were asked for.
local function position(tvb, pinfo)
	local id = value(get_stream) or -1
	local stream = streams[id] or { dirs = {} }
	streams[id] = stream
	local name = tostring(pinfo.src) .. " " .. pinfo.src_port
	local dir = stream.dirs[name] or { at = {}, joined = {}, name = name }
	stream.dirs[name] = dir
	if tvb:offset() == 0 and dir.pending then
		dir.joined[pinfo.number] = dir.joined[pinfo.number] or dir.pending
		return stream, dir, dir.joined[pinfo.number], false
	end
	local length = value(get_len) or 0
	return stream, dir, sequence((value(get_seq) or 0) + length - tvb:reported_len()), length > tvb:reported_len()
end

-- mark returns which messages a segment of "bywash capture" has: nil if it is none, false during the handshake.
local function mark()
	local info = last(nil, get_options())
	local range = info and info.range
	if not range or range:len() < 8 or range(0, 4):uint() ~= 0xfd084279 or range(4, 1):uint() ~= 1 then return nil end
	local flags = range(5, 1):uint()
	if flags % 2 == 0 then return false end
	return math.floor(flags / 4) % 2 == 1 and "record" or math.floor(flags / 2) % 2 == 1 and "large" or "small"
end

local function is_handshake(tvb, off)
	return tvb:captured_len() >= off + 8 and tvb(off, 4):uint() == MAGIC and SIZES[tvb(off + 5, 1):uint()] ~= nil
end

-- small_head returns kind, bytes of the frame and length of the message, or nothing if there is no such head.
local function small_head(tvb, off)
	local kind, n = tvb(off + 3, 1):uint(), tvb(off, 3):le_uint()
	if kind == MESSAGE and n <= MAX_SMALL then return kind, HEAD + math.floor((n + 3) / 4) * 4, n end
	if (kind == PING or kind == BYE) and n == 0 or kind == GRANT and n > 0 then return kind, HEAD, n end
end

local function record_head(tvb, off)
	local n = tvb(off, LENGTH):le_uint()
	if n > TAG and n <= MAX_RECORD + TAG then return n, LENGTH + n end
end

-- large_head returns kind, bytes that follow and length of the message, or nothing if there is no such head.
local function large_head(tvb, off)
	local kind, high = tvb(off, 4):le_uint(), tvb(off + 4, 4):le_uint()
	local follow, total = tvb(off + 16, 8):le_uint64():tonumber(), tvb(off + 24, 8):le_uint64():tonumber()
	local tag = tvb(off + 8, 8):le_uint64():tonumber()
	if high ~= 0 then return end
	if kind == MESSAGE and follow <= total and total <= MAX_LARGE and tvb(off + 8, 1):uint() < SLOTS then
		return kind, follow, total
	end
	if (kind == PING or kind == BYE) and follow == 0 and total == 0 and tag == 0 then return kind, 0, 0 end
end

-- chain reports whether frames or records follow each other from off to the end of the segment.
local function chain(head, tvb, off)
	local size, known = tvb:reported_len(), tvb:captured_len()
	for _ = 1, 1000 do
		if off == size then return true end
		if off + LENGTH > known then return false end
		local first, bytes = head(tvb, off)
		if not first then return false end
		off = off + bytes
	end
	return true
end

-- find returns where the next element begins in a segment with unknown beginning, and how messages look.
local function find(tvb, off, mode)
	if mode ~= "large" then
		for at = off, math.min(tvb:captured_len() - LENGTH, off + SCAN) do
			if mode ~= "record" and chain(small_head, tvb, at) then return at, "small" end
			if mode ~= "small" and chain(record_head, tvb, at) then return at, "record" end
		end
	end
	-- Bytes of long messages look like anything: only a head at the beginning of a segment is believed.
	if mode ~= "small" and mode ~= "record" and tvb:captured_len() >= off + TRANSFER and large_head(tvb, off) then
		return off, "large"
	end
end

-- An element's function returns its bytes, its text, and which element follows it; or nil and how many bytes are to be
-- there before it can be shown. It is given the state of the element, and the tree.
local elements = {}

function elements.handshake(x, tvb, off, stream, dir)
	local kind = tvb(off + 5, 1):uint()
	local size = SIZES[kind]
	if tvb:captured_len() < off + size then return nil, size end
	local tree = x.tree:add(proto, tvb(off, size), "Bywash handshake: " .. HANDSHAKES[kind])
	tree:add(f.version, tvb(off + 4, 1))
	tree:add(f.handshake, tvb(off + 5, 1))
	if kind == REFUSAL then
		local code = tvb(off + 6, 2):le_uint()
		tree:add_le(f.code, tvb(off + 6, 2))
		return size, "Refusal: " .. (REFUSALS[code] or "reason " .. code)
	end
	if kind == HELLO then
		stream.dialer = dir.name
		tree:add(f.key_id, tvb(off + 8, 8))
	end
	tree:add(f.public_key, tvb(off + size - 48, 32))
	tree:add(f.auth_tag, tvb(off + size - TAG, TAG))
	return size, HANDSHAKES[kind], { what = "note", first = true }
end

-- The kinds of sealed frames can be told only by their lengths and senders.
local function note_name(x, stream, dir, size)
	if x.first and stream.dialer == dir.name then
		stream.driver = stream.driver or size == CLAIM
		return "Claim"
	elseif x.first then
		stream.driver = stream.driver or size == WELCOME
		return size == WELCOME and "Welcome or refusal" or "Sealed frame"
	elseif stream.driver and size == TOKEN then
		stream.leader = stream.leader or dir.name
		return stream.leader == dir.name and "Take" or "Stand"
	elseif stream.driver and size == BARE then
		return stream.leader == dir.name and "Up" or "Seen"
	end
	return "Sealed frame"
end

function elements.note(x, tvb, off, stream, dir)
	local n = tvb(off, LENGTH):le_uint()
	if n < TAG or n > MAX_SEALED then return end
	if tvb:captured_len() < off + LENGTH + n then return nil, LENGTH + n end
	local name = note_name(x, stream, dir, n - TAG)
	local tree = x.tree:add(proto, tvb(off, LENGTH + n), "Bywash sealed frame: " .. name)
	tree:add(f.note, tvb(off, LENGTH + n), name):set_generated()
	tree:add_le(f.sealed_length, tvb(off, LENGTH))
	tree:add(f.sealed, tvb(off + LENGTH, n - TAG))
	tree:add(f.auth_tag, tvb(off + LENGTH + n - TAG, TAG))
	local messages = name == "Up" or name == "Stand"
	return LENGTH + n, name, { what = messages and "messages" or "note" }
end

-- messages is the first element after the handshake: its first bytes say of which track, or that it is encrypted.
function elements.messages(x, tvb, off, stream, dir)
	local n = tvb(off, 4):le_uint()
	stream.mode = n >= 2 ^ 24 and "small" or n <= BYE and "large" or "record"
	return elements[stream.mode](x, tvb, off, stream, dir)
end

function elements.small(x, tvb, off)
	local kind, size, n = small_head(tvb, off)
	if not kind then return end
	if x.whole and tvb:reported_len() < off + size then return nil, size end
	local shown = math.min(size, tvb:captured_len() - off)
	local tree = x.tree:add(proto, tvb(off, shown), "Bywash: " .. KINDS[kind])
	tree:add(f.kind, tvb(off + 3, 1))
	local text = KINDS[kind]
	if kind == GRANT then
		tree:add(f.granted, tvb(off, 3), 4 * n)
		text = text .. " " .. 4 * n
	elseif kind == MESSAGE then
		tree:add(f.length, tvb(off, 3), UInt64(n))
		text = text .. " of " .. n
		if math.min(n, shown - HEAD) > 0 then tree:add(f.payload, tvb(off + HEAD, math.min(n, shown - HEAD))) end
	end
	return size, text, { what = "small" }
end

function elements.large(x, tvb, off)
	if tvb:captured_len() < off + TRANSFER then return nil, TRANSFER end
	local kind, follow, total = large_head(tvb, off)
	if not kind then return end
	local tree = x.tree:add(proto, tvb(off, TRANSFER), "Bywash: " .. KINDS[kind])
	tree:add(f.kind, tvb(off, 1))
	if kind ~= MESSAGE then return TRANSFER, KINDS[kind], { what = "large" } end
	local tag = "0x" .. tvb(off + 8, 8):le_uint64():tohex()
	tree:add_le(f.tag, tvb(off + 8, 8))
	tree:add(f.slot, tvb(off + 8, 1))
	tree:add_le(f.follow, tvb(off + 16, 8))
	tree:add_le(f.length, tvb(off + 24, 8))
	local text = string.format("Message of %.0f, tag %s", total, tag)
	return TRANSFER, text, { what = follow > 0 and "payload" or "large", left = follow, tag = tag, after = "large" }
end

-- payload is what a segment has of an element that began in one before.
function elements.payload(x, tvb, off)
	local n = math.min(x.left, tvb:reported_len() - off)
	local shown = math.min(n, tvb:captured_len() - off)
	local tree = x.tree:add(proto, tvb(off, math.max(shown, 0)), "Bywash: part of a message")
	if x.tag then tree:add(f.transfer, tvb(off, 0), x.tag):set_generated() end
	tree:add(f.left, tvb(off, 0), UInt64.new(x.left - n)):set_generated()
	if shown > 0 then tree:add(f.payload, tvb(off, shown)) end
	local text = string.format("Part of %.0f", n)
	if n == x.left then return n, text, { what = x.after } end
	return n, text, { what = "payload", left = x.left - n, tag = x.tag, after = x.after }
end

function elements.record(x, tvb, off)
	local n, size = record_head(tvb, off)
	if not n then return end
	if x.whole and tvb:reported_len() < off + size then return nil, size end
	local shown = math.min(size, tvb:captured_len() - off)
	local tree = x.tree:add(proto, tvb(off, shown), "Bywash: encrypted")
	tree:add_le(f.record, tvb(off, LENGTH))
	if shown > LENGTH then tree:add(f.sealed, tvb(off + LENGTH, shown - LENGTH)) end
	return size, "encrypted " .. n, { what = "record" }
end

-- begin returns what a segment begins with whose beginning is unknown, and how many bytes are before that.
local function begin(tvb, stream)
	if is_handshake(tvb, 0) then return { what = "handshake" }, 0 end
	local mode = mark()
	if mode == nil then mode = stream.mode or not stream.dialer and "any" end
	if not mode then return nil, tvb:reported_len() end
	local at, found = find(tvb, 0, mode)
	if not at then return nil, tvb:reported_len() end
	stream.mode = found
	return { what = found }, at
end

-- walk shows the elements of tvb. It returns their texts, and where an element begins that needs more bytes, and how
-- many of them.
local function walk(tvb, tree, whole, stream, dir, seq)
	local texts, off, size, known = {}, 0, tvb:reported_len(), tvb:captured_len()
	local function rest(text, expert_info, n)
		texts[#texts + 1] = text
		local shown = math.max(math.min(n, known - off), 0)
		local item = tree:add(f.rest, tvb(math.min(off, known), shown))
		item:add_proto_expert_info(expert_info)
		off = off + n
	end
	local state = dir.at[seq]
	if not state then
		local n
		state, n = begin(tvb, stream)
		if n > 0 then rest("Continuation", e_lost, n) end
	end
	while off < size do
		local x = { tree = tree, whole = whole, first = state.first, left = state.left, tag = state.tag, after = state.after }
		local bytes, text, after
		if off + LENGTH <= known or state.what == "payload" and off <= known then
			bytes, text, after = elements[state.what](x, tvb, off, stream, dir)
		else
			text = LENGTH
		end
		if bytes and off + bytes > size then -- the rest of an element of which all cannot be had
			after = { what = "payload", left = off + bytes - size, after = after.what }
			bytes = size - off
		elseif not bytes and type(text) == "number" then
			if whole and off + text > size then return texts, off, off + text - size end
			return rest("cut", e_cut, size - off) or texts
		elseif not bytes then
			return rest("malformed", e_bad, size - off) or texts
		end
		texts[#texts + 1] = text
		off = off + bytes
		dir.at[sequence(seq + off)] = after
		state = after
		if not state and off < size then return rest("malformed", e_bad, size - off) or texts end
	end
	return texts
end

function proto.dissector(tvb, pinfo, tree)
	local stream, dir, seq, continued = position(tvb, pinfo)
	local whole = tvb:captured_len() == tvb:reported_len()
	pinfo.cols.protocol = "Bywash"
	local texts, off, more = walk(tvb, tree, whole, stream, dir, seq)
	if more then
		dir.pending = sequence(seq + off)
		dir.at[dir.pending] = dir.at[dir.pending] or dir.at[seq]
		pinfo.desegment_offset, pinfo.desegment_len = off, more
	end
	if #texts > 8 then texts = { table.unpack(texts, 1, 8), "…" } end
	local text = table.concat(texts, ", ")
	if continued then
		pinfo.cols.info:append(", " .. text)
	else
		pinfo.cols.info = string.format("%d → %d %s", pinfo.src_port, pinfo.dst_port, text)
	end
	return tvb:reported_len()
end

proto:register_heuristic("tcp", function(tvb, pinfo, tree)
	if not proto.prefs.heuristic or not (is_handshake(tvb, 0) or mark() ~= nil) then return false end
	pinfo.conversation = proto
	proto.dissector(tvb, pinfo, tree)
	return true
end)

local tcp, port = DissectorTable.get("tcp.port"), 0
tcp:add_for_decode_as(proto)

function proto.prefs_changed()
	if port == proto.prefs.port then return end
	if port ~= 0 then tcp:remove(port, proto) end
	port = proto.prefs.port
	if port ~= 0 then tcp:add(port, proto) end
end
