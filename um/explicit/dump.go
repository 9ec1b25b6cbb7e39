package explicit
import "fmt"
func (r *Runtime) Dump() string {
 s:=fmt.Sprintf("pending %d flying %v plainNeed %d mapped %d spares %d limbo %d in %d out %d graves %d plan fetch %d evict %d\n",len(r.pending),r.flying,r.plainNeed,r.physical.mapped,r.physical.spares,r.physical.limbo,r.incoming,r.outgoing,r.graves.bytes,len(r.plan.fetch),len(r.plan.evict))
 for _,t:=range r.slots { if t!=nil { s+=fmt.Sprintf("  %x size %d absent %d flying %d state %d named %v queued %v leaves %d\n",t.base,t.size,t.absent,t.flying,t.state,t.named,t.queued,t.leaves)}}
 return s
}
