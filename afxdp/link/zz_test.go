package link
import ("testing";"sort";"fmt")
func TestYY(t *testing.T) {
  var sum float64; m:=0
 for seed:=uint64(1);seed<3;seed++ {
  for _,n := range []int{2,8,32,100} { for _,mtu:=range []int{1500,9000} { for _,g:=range []float64{1,10,25} { for _,q:=range []int{50,300} {
	x := contest{flows: n, queue: q, rate: g*gbit, delay: 10000, spread: 1, mtu: mtu, length: Time(float64(100e6)*max(1,3/g)), late:seed&1==0}
	o:=x.run(t,seed); sum+=o.jain; m++; if o.jain<0.8||o.used<0.9 || seed==1 && n==8 {t.Logf("seed %d n %d mtu %d %v Gb q %d: %v",seed,n,mtu,g,q,o)}
  }}}}
 }
 t.Log("mean", sum/float64(m))
}
func TestZZ(t *testing.T) {
	x := contest{flows: 8, queue: 50, rate: 25 * gbit, delay: 10000, spread: 1, mtu: 1500, length: 100e6}
	zz = func(s *sim, flows []*simConn, from []uint64) {
		idx:=make([]int,len(flows)); for k:=range idx{idx[k]=k}
		sort.Slice(idx,func(a,b int)bool{return flows[idx[a]].flooded-from[idx[a]]<flows[idx[b]].flooded-from[idx[b]]})
		for _,k:=range idx { c:=flows[k].twin.c; fmt.Printf("%d got %d: cwnd %.2f target %v room %v floor %.2f loss %.2f min %v srtt %v var %v latest %v inflight %d lost %d backoff %d look %v/%v pause %v fast %v limited %v lim %d next %d una %d probes %d again %d acked %d missed %d credits %v at %v\n",k,flows[k].flooded-from[k],c.cwnd,c.target,c.room,c.floor,c.loss,c.minRTT,c.srtt,c.rttvar,c.latest,c.inflight,c.lost,c.backoff,c.lookAt-s.now,c.lookTo,c.lookPause,c.fast,c.limited,c.limit,c.next,c.una,c.e.stats.Probes,c.e.stats.Retransmits,c.acked,c.missed,c.credits,c.pacedAt-s.now) }
	}
	t.Log(x.run(t,2))
}
