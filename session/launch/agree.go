package launch

import (
	"strconv"
	"strings"
)

// MaxWord is the longest word that ranks can agree on, in bytes.
const MaxWord = 32

// Over a key-value space, whose only collective operation is the fence, words go up a tree: each rank reads its
// children's, and puts its own if all are the same. The root's value is the answer. So a rank reads arity+1 values at
// most, and a host of a thousand ranks takes three fences.
const arity = 32

// disagreed is the value of ranks that disagree. No word's base64 contains it.
const disagreed = ","

func agreeKey(rank int) string { return "bw-agree-" + strconv.Itoa(rank) }

// depth returns how many steps a rank is from the root.
func depth(rank int) (n int) {
	for ; rank > 0; rank = (rank - 1) / arity {
		n++
	}
	return n
}

func agree(kv kvs, rank, size int, word []byte) (bool, error) {
	if size == 1 {
		return true, nil // Hydra 4.2 reports "(vector,0)" for such a job
	}
	if one, err := kv.oneHost(size); err != nil || !one {
		return false, err // all ranks get the same answer, so that none waits in a fence
	}
	mine := b64.EncodeToString(word)
	for level := depth(size - 1); level >= 0; level-- {
		if depth(rank) == level {
			verdict, err := gather(kv, rank, size, mine)
			if err == nil {
				err = kv.put(agreeKey(rank), verdict)
			}
			if err != nil {
				return false, err
			}
		}
		if err := kv.fence(); err != nil {
			return false, err
		}
	}
	root, err := kv.get(0, agreeKey(0))
	return err == nil && root == mine, err
}

// gather returns the word on which a rank and all below it agree, else disagreed.
func gather(kv kvs, rank, size int, mine string) (string, error) {
	verdict := mine
	for child := arity*rank + 1; child <= arity*rank+arity && child < size; child++ {
		v, err := kv.get(child, agreeKey(child))
		if err != nil {
			return "", err
		}
		if v != mine {
			verdict = disagreed
		}
	}
	return verdict, nil
}

// mappingKey is the key of PMI's process mapping: which ranks are on which node.
const mappingKey = "PMI_process_mapping"

// oneNode reports whether a process mapping has all ranks on one node: (vector,(NODE,NODES,RANKS),…), where each block
// gives so many ranks to each of so many nodes, and the blocks begin again when there are more ranks. It returns false
// for a malformed mapping.
func oneNode(mapping string, size int) bool {
	rest, ok := strings.CutPrefix(mapping, "(vector,")
	rest, ok2 := strings.CutSuffix(rest, ")")
	if !ok || !ok2 {
		return false
	}
	one, node, placed := true, -1, 0
	for {
		block, more, ok := strings.Cut(rest, ")")
		block, ok2 := strings.CutPrefix(block, "(")
		numbers := strings.Split(block, ",")
		if !ok || !ok2 || len(numbers) != 3 {
			return false
		}
		var n [3]int
		for i, s := range numbers {
			v, err := strconv.ParseUint(s, 10, 31)
			if err != nil || v < 1 && i > 0 {
				return false
			}
			n[i] = int(v)
		}
		if placed < size { // further blocks have no rank
			one = one && (n[1] == 1 || placed+n[2] >= size) && (node < 0 || n[0] == node)
			node, placed = n[0], placed+min(n[2], size)
		}
		if more == "" {
			return one
		}
		if rest, ok = strings.CutPrefix(more, ","); !ok {
			return false
		}
	}
}
