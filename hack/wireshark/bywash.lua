-- Wireshark dissector for what Bywash's driver afxdp puts on the wire: docs/wire.md of the source tree.
--
--   tshark -X lua_script:bywash.lua -r FILE      wireshark -X lua_script:bywash.lua FILE
--
-- It knows frames of kind ether by their EtherType, and UDP datagrams by their port (24249; another one:
-- -d udp.port==40000,bywash, or the preference) or, on any port, by their look. Wireshark 3.6 or later.

set_plugin_info({ version = "2", author = "Bywash", description = "Bywash link packets" })

local MAGIC, VERSION, LINK_VERSION = 0xb7, 1, 3
local ETHERTYPE, ETHER_PROTOCOL = 0x88b5, 0x42
local PREFIX, HEADER, SEQ_HEADER, PLACED_HEADER, PART_HEADER = 4, 48, 56, 80, 8
local GREETING, COOKIE, SMALL, NOTE = 176, 40, 40, 56
local TAG, MAX_WORDS, MAX_HELLO = 16, 64, 63

local KINDS = {
	[1] = "Init", [2] = "Cookie", [3] = "Accept", [4] = "Reject", [5] = "Connect request",
	[6] = "Data", [7] = "Ack", [8] = "Ping", [9] = "Close", [10] = "Closed", [11] = "Reset",
	[12] = "Here", [13] = "Query", [14] = "Gone",
}
local INIT, COOKIE_KIND, ACCEPT, REJECT, CONNECT_REQUEST, DATA, CLOSE, CLOSED, RESET = 1, 2, 3, 4, 5, 6, 9, 10, 11
local HERE, QUERY, GONE = 12, 13, 14
local REJECTS = { [1] = "authentication", [2] = "version", [3] = "endpoint is another one" }

local proto = Proto("bywash", "Bywash")
local ether = Proto("bywash_ether", "Bywash over Ethernet")

proto.prefs.port = Pref.uint("UDP port", 24249, "Datagrams to and from it are taken for Bywash's")
proto.prefs.heuristic = Pref.bool("Other UDP ports", true, "Datagrams that look like Bywash's are taken for it on any port")
proto.prefs.checksum = Pref.bool("Verify checksums", false, "Compute CRC-32C of each packet in the clear (slow)")

local f, fields = {}, {}
local function field(name, kind, label, ...)
	f[name] = ProtoField[kind]("bywash." .. name, label, ...)
	fields[#fields + 1] = f[name]
end

field("magic", "uint8", "Magic", base.HEX)
field("version", "uint8", "Version of the prefix")
field("dst", "uint8", "Destination context")
field("src", "uint8", "Source context")
field("kind", "uint8", "Kind", base.DEC, KINDS)
field("flags", "uint8", "Flags", base.HEX)
field("flags.more", "bool", "More fragments follow", 8, nil, 0x01)
field("flags.placed", "bool", "Placed fragment", 8, nil, 0x02)
field("flags.phase", "bool", "Key phase", 8, nil, 0x04)
field("flags.sealed", "bool", "Sealed", 8, nil, 0x08)
field("flags.abort", "bool", "Not in order", 8, nil, 0x10)
field("flags.ask", "bool", "Acknowledge at once", 8, nil, 0x20)
field("flags.part", "bool", "Part of a fragment", 8, nil, 0x40)
field("link_version", "uint8", "Version of the link")
field("size", "uint16", "Size")
field("crc", "uint32", "CRC-32C", base.HEX)
field("crc.good", "bool", "Checksum is right")
field("conn", "uint64", "Connection (receiver's)", base.HEX)
field("pn", "uint64", "Packet number")
field("cum", "uint64", "Acknowledged below")
field("credit", "uint32", "Credit (units, low half of the limit)")
field("stamp", "uint32", "Time stamp (1024 ns)")
field("echo", "uint32", "Echoed time stamp (1024 ns)")
field("delay", "uint16", "Delay of the echo (1024 ns)")
field("words", "uint8", "Words of bitmap")
field("dups", "uint8", "Duplicates seen")
field("bitmap", "uint64", "Bitmap", base.HEX)
field("acked", "string", "Also acknowledged")
field("seq", "uint64", "Fragment")
field("end", "uint64", "Fragments sent")
field("tag", "uint64", "Tag of the message", base.HEX)
field("offset", "uint64", "Offset in the message")
field("part", "uint8", "Part of the fragment")
field("length", "uint16", "Length of the fragment")
field("total", "uint64", "Bytes of the message")
field("payload", "bytes", "Payload")
field("sealed", "bytes", "Sealed with AES-256-GCM")
field("auth_tag", "bytes", "Authentication tag")
field("to", "uint64", "To", base.HEX)
field("from", "uint64", "From endpoint", base.HEX)
field("id", "uint64", "Connection (of a greeting: the sender's)", base.HEX)
field("nonce", "bytes", "Nonce")
field("mtu", "uint32", "Largest packet in one frame, bytes of a unit of credit")
field("first_credit", "uint32", "First credit (units)")
field("longest", "uint16", "Largest placed packet")
field("window", "uint16", "Fragments that may be under way")
field("options", "uint32", "Options", base.HEX)
field("options.encrypt", "bool", "Encrypt", 32, nil, 0x01)
field("hello", "bytes", "Hello")
field("cookie", "bytes", "Cookie")
field("mac", "bytes", "MAC")
field("code", "uint8", "Reason", base.DEC, REJECTS)
field("sent", "uint64", "Sent, or asked, by the clock of whoever asks")
proto.fields = fields

local e_short = ProtoExpert.new("bywash.short", "Packet is shorter than its kind", expert.group.MALFORMED, expert.severity.ERROR)
local e_unknown = ProtoExpert.new("bywash.unknown", "Unknown version or kind", expert.group.UNDECODED, expert.severity.WARN)
local e_crc = ProtoExpert.new("bywash.crc.bad", "Checksum is wrong", expert.group.CHECKSUM, expert.severity.ERROR)
local e_cut = ProtoExpert.new("bywash.cut", "Not all of the packet was captured", expert.group.UNDECODED, expert.severity.NOTE)
proto.experts = { e_short, e_unknown, e_crc, e_cut }

local eproto = ProtoField.uint8("bywash_ether.protocol", "Protocol", base.HEX)
local eversion = ProtoField.uint8("bywash_ether.version", "Version")
local edst = ProtoField.uint16("bywash_ether.dstport", "Destination port")
local esrc = ProtoField.uint16("bywash_ether.srcport", "Source port")
local elength = ProtoField.uint16("bywash_ether.length", "Length of the payload")
ether.fields = { eproto, eversion, edst, esrc, elength }

-- Lua 5.2 (Wireshark before 4.4) has no operator for it, Lua 5.4 no library.
local bxor = bit32 and bit32.bxor or load("return function(a, b) return a ~ b end")()

local crc_table
-- crc32c of a packet: it begins with the first 4 bytes as if they were a sum, and goes over what follows the field.
local function crc32c(bytes)
	if not crc_table then
		crc_table = {}
		for i = 0, 255 do
			local c = i
			for _ = 1, 8 do
				c = c % 2 == 1 and bxor(math.floor(c / 2), 0x82f63b78) or math.floor(c / 2)
			end
			crc_table[i] = c
		end
	end
	local a, b, c, d = bytes:byte(1, 4)
	local crc = 0xffffffff - (a + b * 256 + c * 65536 + d * 16777216)
	for i = 9, #bytes do
		crc = bxor(crc_table[bxor(crc % 256, bytes:byte(i))], math.floor(crc / 256))
	end
	return 0xffffffff - crc
end

local function has(flags, mask) return math.floor(flags / mask) % 2 == 1 end

-- acked lists what a bitmap acknowledges: bit k of it all is cum + 1 + k.
local function acked(tvb, at, words, cum)
	local out, first, last = {}, nil, nil
	local function close()
		if first then
			local low, high = tostring(cum + 1 + first), tostring(cum + 1 + last)
			out[#out + 1] = low == high and low or low .. "-" .. high
		end
		first = nil
	end
	for k = 0, words * 64 - 1 do
		local byte = tvb(at + math.floor(k / 8), 1):uint()
		if has(byte, 2 ^ (k % 8)) then
			first, last = first or k, k
		else
			close()
		end
	end
	close()
	return table.concat(out, ",")
end

local function add_crc(tvb, tree, size)
	local item = tree:add_le(f.crc, tvb(4, 4))
	if proto.prefs.checksum and tvb:captured_len() >= size then
		local good = crc32c(tvb:raw(0, size)) == tvb(4, 4):le_uint()
		tree:add(f["crc.good"], tvb(4, 4), good):set_generated()
		if not good then item:add_proto_expert_info(e_crc) end
	end
end

-- unconnected is how packets that are of no connection begin.
local function unconnected(tvb, tree, size)
	local version = tree:add(f.link_version, tvb(1, 1))
	if tvb(1, 1):uint() ~= LINK_VERSION then version:add_proto_expert_info(e_unknown) end
	tree:add_le(f.size, tvb(2, 2))
	add_crc(tvb, tree, size)
end

local function greeting(tvb, tree, kind)
	unconnected(tvb, tree, GREETING)
	tree:add_le(f.to, tvb(8, 8)):append_text(kind == INIT and " (endpoint)" or " (connection)")
	tree:add_le(f.from, tvb(16, 8))
	tree:add_le(f.id, tvb(24, 8))
	tree:add(f.nonce, tvb(32, 16))
	tree:add_le(f.mtu, tvb(48, 4))
	tree:add_le(f.first_credit, tvb(52, 4))
	local options = tree:add_le(f.options, tvb(56, 4))
	options:add_le(f["options.encrypt"], tvb(56, 4))
	tree:add_le(f.longest, tvb(60, 2))
	tree:add_le(f.window, tvb(62, 2))
	local n = math.min(tvb(64, 1):uint(), MAX_HELLO)
	if n > 0 then tree:add(f.hello, tvb(65, n)) end
	tree:add(f.cookie, tvb(128, 24))
	tree:add_le(f.sent, tvb(152, 8))
	tree:add(f.mac, tvb(160, 16))
	return string.format("id=0x%s to=0x%s", tvb(24, 8):le_uint64():tohex(), tvb(8, 8):le_uint64():tohex())
end

local function cookie(tvb, tree)
	unconnected(tvb, tree, COOKIE)
	tree:add_le(f.to, tvb(8, 8)):append_text(" (connection)")
	tree:add(f.cookie, tvb(16, 24))
	return string.format("to=0x%s", tvb(8, 8):le_uint64():tohex())
end

-- note dissects Connect request, Here, Query and Gone.
local function note(tvb, tree)
	unconnected(tvb, tree, NOTE)
	tree:add_le(f.to, tvb(8, 8)):append_text(" (endpoint)")
	tree:add_le(f.from, tvb(16, 8))
	tree:add_le(f.id, tvb(24, 8))
	tree:add_le(f.sent, tvb(32, 8))
	tree:add(f.mac, tvb(40, 16))
	return string.format("to=0x%s id=0x%s", tvb(8, 8):le_uint64():tohex(), tvb(24, 8):le_uint64():tohex())
end

-- small is Reject and Reset.
local function small(tvb, tree, kind)
	unconnected(tvb, tree, SMALL)
	tree:add_le(f.to, tvb(8, 8)):append_text(" (connection)")
	local text = string.format("to=0x%s", tvb(8, 8):le_uint64():tohex())
	if kind == REJECT then
		tree:add_le(f.from, tvb(16, 8))
		local code = tvb(32, 1):uint()
		tree:add(f.code, tvb(32, 1))
		text = text .. " " .. (REJECTS[code] or "reason " .. code)
	end
	return text
end

-- body is what follows the header of a packet in the clear, up to its bitmap.
local function body(tvb, tree, kind, flags, stop)
	local text = ""
	if kind == DATA then
		local at = SEQ_HEADER
		tree:add_le(f.seq, tvb(48, 8))
		text = " seq=" .. tostring(tvb(48, 8):le_uint64())
		if has(flags, 0x40) then
			tree:add_le(f.length, tvb(at, 2))
			tree:add(f.part, tvb(at + 2, 1))
			text = text .. string.format(" part=%d of %d bytes", tvb(at + 2, 1):uint(), tvb(at, 2):le_uint())
			at = at + PART_HEADER
		end
		if has(flags, 0x02) then
			tree:add_le(f.tag, tvb(at, 8))
			tree:add_le(f.offset, tvb(at + 8, 8))
			tree:add_le(f.total, tvb(at + 16, 8))
			text = text .. string.format(" tag=0x%s at=%s/%s", tvb(at, 8):le_uint64():tohex(),
				tostring(tvb(at + 8, 8):le_uint64()), tostring(tvb(at + 16, 8):le_uint64()))
			at = at + 24
		end
		local n = math.min(stop, tvb:captured_len()) - at
		if n > 0 then tree:add(f.payload, tvb(at, n)) end
		text = text .. " len=" .. (stop - at)
	elseif kind == CLOSE or kind == CLOSED then
		tree:add_le(f["end"], tvb(48, 8))
		text = kind == CLOSE and " end=" .. tostring(tvb(48, 8):le_uint64()) or ""
	end
	return text
end

-- least is how many bytes a packet has before its payload and bitmap.
local function least(kind, flags)
	if has(flags, 0x08) then return HEADER + TAG end
	if kind == DATA then
		return (has(flags, 0x02) and PLACED_HEADER or SEQ_HEADER) + (has(flags, 0x40) and PART_HEADER or 0)
	end
	return (kind == CLOSE or kind == CLOSED) and SEQ_HEADER or HEADER
end

local function connected(tvb, tree, kind, size)
	local flags = tvb(1, 1):uint()
	local flag_tree = tree:add(f.flags, tvb(1, 1))
	for _, name in ipairs({ "more", "placed", "phase", "sealed", "abort", "ask", "part" }) do
		flag_tree:add(f["flags." .. name], tvb(1, 1))
	end
	local sealed = has(flags, 0x08)
	tree:add_le(f.size, tvb(2, 2))
	if sealed then tree:add_le(f.crc, tvb(4, 4)) else add_crc(tvb, tree, size) end
	tree:add_le(f.conn, tvb(8, 8))
	tree:add_le(f.pn, tvb(16, 8))
	tree:add_le(f.cum, tvb(24, 8))
	tree:add_le(f.credit, tvb(32, 4))
	tree:add_le(f.stamp, tvb(36, 4))
	tree:add_le(f.echo, tvb(40, 4))
	tree:add_le(f.delay, tvb(44, 2))
	tree:add(f.words, tvb(46, 1))
	tree:add(f.dups, tvb(47, 1))
	local text = string.format("conn=0x%s pn=%s ack=%s", tvb(8, 8):le_uint64():tohex(),
		tostring(tvb(16, 8):le_uint64()), tostring(tvb(24, 8):le_uint64()))
	local words = tvb(46, 1):uint()
	if sealed then
		local n = math.min(size - TAG, tvb:captured_len()) - HEADER
		if n > 0 then tree:add(f.sealed, tvb(HEADER, n)) end
		if tvb:captured_len() >= size then tree:add(f.auth_tag, tvb(size - TAG, TAG)) end
		return text .. " sealed len=" .. (size - TAG - HEADER)
	end
	local stop = size - 8 * words
	if words > MAX_WORDS or stop < least(kind, flags) then
		tree:add_proto_expert_info(e_short)
		return text
	end
	text = text .. body(tvb, tree, kind, flags, stop)
	if words > 0 and tvb:captured_len() >= size then
		for k = 0, words - 1 do tree:add_le(f.bitmap, tvb(stop + 8 * k, 8)) end
		local also = acked(tvb, stop, words, tvb(24, 8):le_uint64())
		tree:add(f.acked, tvb(stop, 8 * words), also):set_generated()
		text = text .. " +" .. also
	end
	return text
end

local SIZES = { [INIT] = GREETING, [COOKIE_KIND] = COOKIE, [ACCEPT] = GREETING, [REJECT] = SMALL, [RESET] = SMALL,
	[CONNECT_REQUEST] = NOTE, [HERE] = NOTE, [QUERY] = NOTE, [GONE] = NOTE }

-- packet is given how long it was on the wire: a capture may have cut it, and parts of a tvb do not know.
local function packet(tvb, wire, pinfo, tree)
	local kind = tvb(0, 1):uint()
	local size = tvb(2, 2):le_uint()
	local item = tree:add(f.kind, tvb(0, 1))
	if not KINDS[kind] then
		item:add_proto_expert_info(e_unknown)
		pinfo.cols.info = "kind " .. kind
		return
	end
	local need = SIZES[kind] or least(kind, tvb(1, 1):uint())
	if size < need or SIZES[kind] and size ~= need or size > wire then
		item:add_proto_expert_info(e_short)
		pinfo.cols.info = KINDS[kind] .. " (malformed)"
		return
	end
	if tvb:captured_len() < need then
		item:add_proto_expert_info(e_cut)
		pinfo.cols.info = KINDS[kind] .. " (cut)"
		return
	end
	local text
	if kind == INIT or kind == ACCEPT then
		text = greeting(tvb, tree, kind)
	elseif kind == COOKIE_KIND then
		text = cookie(tvb, tree)
	elseif SIZES[kind] == NOTE then
		text = note(tvb, tree)
	elseif SIZES[kind] then
		text = small(tvb, tree, kind)
	else
		text = connected(tvb, tree, kind, size)
	end
	if tvb:captured_len() < size then item:add_proto_expert_info(e_cut) end
	pinfo.cols.info = KINDS[kind] .. " " .. text
end

local function dissect(tvb, wire, pinfo, tree)
	if tvb:captured_len() < PREFIX + 4 or tvb(0, 1):uint() ~= MAGIC then return 0 end
	pinfo.cols.protocol = "Bywash"
	local top = tree:add(proto, tvb())
	top:add(f.magic, tvb(0, 1))
	local version = top:add(f.version, tvb(1, 1))
	if tvb(1, 1):uint() ~= VERSION then
		version:add_proto_expert_info(e_unknown)
		pinfo.cols.info = "version " .. tvb(1, 1):uint()
		return wire
	end
	top:add(f.dst, tvb(2, 1))
	top:add(f.src, tvb(3, 1))
	packet(tvb(PREFIX):tvb(), wire - PREFIX, pinfo, top)
	return wire
end

function proto.dissector(tvb, pinfo, tree) return dissect(tvb, tvb:reported_len(), pinfo, tree) end

function ether.dissector(tvb, pinfo, tree)
	-- The EtherType is for local experiments, and shared with others'.
	if tvb:captured_len() < 8 or tvb(0, 1):uint() ~= ETHER_PROTOCOL or tvb(1, 1):uint() ~= 1 then return 0 end
	local n = tvb(6, 2):uint()
	local top = tree:add(ether, tvb(0, 8))
	top:add(eproto, tvb(0, 1))
	top:add(eversion, tvb(1, 1))
	top:add(edst, tvb(2, 2))
	top:add(esrc, tvb(4, 2))
	top:add(elength, tvb(6, 2))
	pinfo.cols.protocol = "Bywash"
	local captured = math.min(n, tvb:captured_len() - 8)
	if captured > 0 then dissect(tvb:range(8, captured):tvb(), n, pinfo, tree) end
	return tvb:captured_len()
end

-- looks tells whether a datagram can be one: the prefix, a kind, and the size of the packet.
local function looks(tvb)
	if tvb:captured_len() < PREFIX + 24 or tvb(0, 1):uint() ~= MAGIC or tvb(1, 1):uint() ~= VERSION then return false end
	local kind, size = tvb(PREFIX, 1):uint(), tvb(PREFIX + 2, 2):le_uint()
	return KINDS[kind] ~= nil and size + PREFIX == tvb:reported_len()
end

proto:register_heuristic("udp", function(tvb, pinfo, tree)
	if not proto.prefs.heuristic or not looks(tvb) then return false end
	proto.dissector(tvb, pinfo, tree)
	return true
end)

local udp, port = DissectorTable.get("udp.port"), 0

function proto.prefs_changed()
	if port ~= proto.prefs.port then
		if port ~= 0 then udp:remove(port, proto) end
		port = proto.prefs.port
		if port ~= 0 then udp:add(port, proto) end
	end
end

port = proto.prefs.port
udp:add(port, proto)
DissectorTable.get("ethertype"):add(ETHERTYPE, ether)
