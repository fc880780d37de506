package link
import "testing"
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
